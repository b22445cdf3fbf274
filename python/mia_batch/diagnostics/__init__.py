"""What can be told of the texts and of missing scores, without asking what a score is worth."""
