"""The suite judged: planted faults and mutants that it must convict, valid variants it must clear."""
