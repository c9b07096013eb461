"""What happened, kept and ranked: the store of records and the boards made from them."""
