"""The nodes that a job has: which answer, what the scheduler says, and who watches when the supervisor is lost."""
