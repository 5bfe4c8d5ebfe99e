"""The fused GPU kernel, in Triton: forward and backward from a plan's arrays alone. Imported only where it is used."""
