"""Plans what each container gets of the GPUs: shares, their names and their options."""
