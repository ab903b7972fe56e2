"""Problems with answers that can be checked, generated or asked of a model."""
