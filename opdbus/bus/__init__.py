"""The D-Bus face: connection, interfaces, dispatch, authorization. Converts and delegates."""
