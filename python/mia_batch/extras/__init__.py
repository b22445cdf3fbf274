"""What an audit can do without: each stands on the core, which finds it by entry points."""
