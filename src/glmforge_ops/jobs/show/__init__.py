"""What a person is told of a job: its line in a list, its page, its logs."""
