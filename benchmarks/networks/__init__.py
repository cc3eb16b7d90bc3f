"""The networks of the benchmarks and their seeded weights; needs torch and torchvision."""
