"""Is a data set fit for training and evaluation? What is wrong with it, row by row, and a copy without that."""
