"""What tests share. pyproject.toml says why it stands here and how it is found."""
