"""What every floor may use: threads of the process, memory limits, logging, lazy names."""
