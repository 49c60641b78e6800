"""Event time as pure arithmetic: watermark strategies, their merging over channels and splits, bounds of windows."""
