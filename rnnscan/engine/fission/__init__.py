"""The fission engine: run only recurrent work step by step: trace -> analysis -> passes -> plan -> execute."""
