"""What `tools/chaos.py` measures: kills, corruptions, fuzzed inputs, an explorer under attack, hostile names."""
