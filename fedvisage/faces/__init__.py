"""From files (or the built-in generator) to images with identities, and from identities to parties with roles."""
