"""What goes where and how much of it: samples, held-out parts, mixtures, augmentation."""
