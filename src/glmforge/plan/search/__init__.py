"""Which layout to take: enumerate, discard by the rules and by memory, rank by predicted time. Also what to propose for
a layout that is refused, and what to say of one that makes no sense."""
