"""Event time as pure arithmetic: watermark strategies, merging over channels and splits, window bounds."""
