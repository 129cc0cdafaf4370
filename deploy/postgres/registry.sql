-- The schema registry keeps its schemas beside the events, in a database of its own.
CREATE DATABASE registry;
