"""The suite judged: it must convict planted faults and mutants, and clear valid variants."""
