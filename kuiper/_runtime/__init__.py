"""Running a plan: executor, steps, threads, memory pages and packed weights."""
