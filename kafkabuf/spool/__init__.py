"""The buffer as a file that outlives the process: its layout, recovery and proof."""
