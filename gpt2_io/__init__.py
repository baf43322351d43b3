"""What goes in and out of the models: files, text, downloads, the command line. Nothing here imports a version."""
