"""Where batch scripts that earlier versions queued find their epilogue; nothing else is here."""
