"""The D-Bus service: connection, interfaces, dispatch, authorization; converts and delegates."""
