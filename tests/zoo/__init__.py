"""A zoo of attention layers: faulty in one way each, or valid in an unusual one."""
