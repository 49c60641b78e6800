"""Routes and requests that concern one job; added to the application by `server.app`."""
