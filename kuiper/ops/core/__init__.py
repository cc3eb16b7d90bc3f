"""What every record builds on: schema, registry, binder, epilogue."""
