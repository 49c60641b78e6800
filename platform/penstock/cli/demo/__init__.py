"""`penstock demo`: scenarios, and the oracle that checks their output."""
