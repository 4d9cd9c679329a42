"""The operator's process: watches, leader election, health pages, and the loop that runs them."""
