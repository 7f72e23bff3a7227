"""The study: every cell of the paper's tables, trained, sampled, evaluated and recorded."""
