"""Many pieces of work over processes and machines."""
