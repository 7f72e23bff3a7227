"""The study's theory, executable: compositions, local conditional scores, and the lemmas as checks."""
