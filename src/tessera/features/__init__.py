"""Looking inside: record features, compare conditions by their mean differences, and the controls for it."""
