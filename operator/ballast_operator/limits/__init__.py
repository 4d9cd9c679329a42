"""What services may ask for, by the options of the operator. Pure."""
