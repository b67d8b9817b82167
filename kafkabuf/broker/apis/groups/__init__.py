"""APIs about consumer groups, their members and their offsets."""
