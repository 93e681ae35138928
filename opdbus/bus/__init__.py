"""The D-Bus service: connection, interfaces, dispatch, authorization. Converts and delegates."""
