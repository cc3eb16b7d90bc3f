"""What every record is made of: schema, registry, binder, epilogue."""
