"""What a report says, as numbers, computed from the estimator and the rows; they are drawn elsewhere."""
