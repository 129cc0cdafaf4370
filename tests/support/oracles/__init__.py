"""Independent models that results are compared with."""
