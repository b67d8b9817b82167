from kafkabuf.memory.buffers import Buffer

KEY_RULES: dict[str, int]
KEYS_IGNORED: int

def select_partition(rule: str, key: Buffer | None, partitions: int) -> int: ...
