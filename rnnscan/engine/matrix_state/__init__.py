"""Matrix states in chunkwise form: `S' = a * S + k v^T`, read by `q^T S`, as in linear attention. Private."""
