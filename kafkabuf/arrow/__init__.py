"""Arrow's C data interface: arrays and schemas as they are exported, read and checked."""
