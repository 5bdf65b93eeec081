"""What both forms of export share: names, types and files of arrays."""
