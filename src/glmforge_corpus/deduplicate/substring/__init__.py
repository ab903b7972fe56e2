"""Long passages that stand in several documents."""
