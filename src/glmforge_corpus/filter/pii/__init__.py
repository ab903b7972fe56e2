"""Personal data: found by rules and checksums, and masked."""
