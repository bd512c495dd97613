"""The viewer of runs: trajectories of an evaluation or of a training run as one HTML file, or served page by page."""
