"""What a run costs: days, GPU-hours, energy, dollars, storage, and what failures add to them."""
