"""Reports: tables and conclusions from records alone, wherever they were made."""
