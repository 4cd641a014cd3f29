"""The `laneway` command. `main` reads the command line, `commands` do the work, `render` shows it, `config` reads settings."""
