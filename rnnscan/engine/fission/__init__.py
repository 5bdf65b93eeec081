"""The fission engine: run only what is recurrent step by step. trace -> analysis -> passes -> plan -> execute."""
